"""Output calibrators, which need only scores, and the selection among them."""
