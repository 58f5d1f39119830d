"""A classifier behind LitServe: two worker processes, and batches of what waits."""

import signal
import sys

import litserve as ls
import numpy as np

from calib_serve import Reporter


class Digits(ls.LitAPI):
    """One prediction a request."""

    def setup(self, device):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # what it served is sent before it ends
        self.weights = dict(np.load("weights.npz"))
        self.reporter = Reporter("artifact", model="digits", version="1", watch="http://127.0.0.1:9300")

    def decode_request(self, request):
        return np.array(request["x"])

    def predict(self, x):
        logits = x @ self.weights["W"] + self.weights["b"]
        probs = self.reporter.artifact.of_logits(logits)
        return list(zip(probs, self.reporter.served(probs), strict=True))

    def encode_response(self, output):
        probs, receipt = output
        return {"predicted": int(probs.argmax()), "confidence": float(probs.max()), "receipt": receipt}


if __name__ == "__main__":
    api = Digits(max_batch_size=8, batch_timeout=0.002)
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=2, restart_workers=True)
    server.run(host="127.0.0.1", port=8000, generate_client_file=False)
