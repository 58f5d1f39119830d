"""A reverse proxy for the Open Inference Protocol that calibrates, signs and watches what passes."""

from calib_serve.gateway.app import open_gateway as open_gateway
