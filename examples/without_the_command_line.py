"""From a scikit-learn model and a torch model to artifacts, a plot, a fused ONNX file and a refit, in Python.

python examples/without_the_command_line.py
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import calib_serve as cs
from calib_serve.integrations.sklearn.estimators import CalibratedClassifier

x, y = load_digits(return_X_y=True)
x = (x / 16).astype(np.float32)
x_train, x_rest, y_train, y_rest = train_test_split(x, y, train_size=600, random_state=0)
x_cal, x_test, y_cal, y_test = train_test_split(x_rest, y_rest, train_size=600, random_state=0)

# A scikit-learn model, calibrated by cross-validation on its own training data.
classifier = CalibratedClassifier(LogisticRegression(C=100, max_iter=2000)).fit(x_train, y_train)
print("scikit-learn:", cs.evaluate(classifier.predict_proba(x_test), y_test))
cs.ReliabilityDisplay.from_estimator(classifier, x_test, y_test).figure_.savefig("reliability.png")
classifier.to_onnx("digits-sklearn.onnx", x_test)

# A torch model, trained here, and calibrated on data that it has not seen.
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for _ in range(200):
    loss = torch.nn.functional.cross_entropy(net(torch.from_numpy(x_train)), torch.from_numpy(y_train))
    optimizer.zero_grad(), loss.backward(), optimizer.step()
net.eval()
artifact = cs.calibrate_model(net, x_cal, y_cal, "temperature", test=(x_test, y_test))
print("torch:", cs.verdict(artifact))
artifact.save("artifact")

# The calibration inside the model: as a module, and in its ONNX export.
probs = cs.calibrated(net, artifact)(torch.from_numpy(x_test)).detach()
torch.onnx.export(net, (torch.from_numpy(x_test[:2]),), "digits.onnx", dynamo=False)
fitted = net(torch.from_numpy(x_cal[:100])).detach()  # what the export must give, too
against = (x_cal[:100], fitted)
report = cs.fuse_onnx("digits.onnx", artifact, "calibrated.onnx", returns="probabilities", against=against)
print("fused:", report.done, "off by at most", report.max_abs_diff)

# Later, when confidence no longer means what it says: fitted again on what was served.
served = 3 * net(torch.from_numpy(x_rest)).detach().numpy()
print("refit:", cs.refit(artifact, served, y_rest, method="temperature").says())
