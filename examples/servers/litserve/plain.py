"""A classifier behind LitServe: two worker processes, and batches of what waits."""

import litserve as ls
import numpy as np


class Digits(ls.LitAPI):
    """One prediction a request."""

    def setup(self, device):
        self.weights = dict(np.load("weights.npz"))

    def decode_request(self, request):
        return np.array(request["x"])

    def predict(self, x):
        logits = x @ self.weights["W"] + self.weights["b"]
        return logits.argmax(axis=1)

    def encode_response(self, output):
        return {"predicted": int(output)}


if __name__ == "__main__":
    api = Digits(max_batch_size=8, batch_timeout=0.002)
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=2, restart_workers=True)
    server.run(host="127.0.0.1", port=8000, generate_client_file=False)
