"""The gateway: a reverse proxy for the Open Inference Protocol that calibrates, signs and watches."""
