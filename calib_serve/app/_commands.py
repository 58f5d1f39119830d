"""The commands, each with one line of what it does."""

__all__ = ["COMMANDS"]

COMMANDS = {
    "Calibrate": {
        "quickstart": "Write a project to start from: a script, its configuration, and how to run it.",
        "evaluate": "Judge scores: a verdict, and every metric with its interval.",
        "fit": "Fit a calibration, say what it changed, and write it as an artifact.",
        "methods": "Show what a method is for, and its options.",
        "compare": "Compare methods on held-out samples, or run a study of the papers.",
        "report": "Write a report as one HTML file: the verdict, and every figure behind it.",
        "decide": "Add prediction sets and abstention with guarantees.",
    },
    "Deploy": {
        "inspect": "Show what an artifact or archive holds, or where an archive can be calibrated.",
        "fuse": "Put a calibration into a model: onnx, torch, or a Triton repository.",
        "pack": "Pack a calibrated model as a TorchServe archive.",
        "serve": "Run TorchServe over calibrated archives.",
        "gateway": "Calibrate between clients and a server of the Open Inference Protocol.",
        "contract": "Say what confidence promises in production, and whether it can be kept.",
    },
    "Watch": {
        "watch": "Count predictions and labels, look for drift, publish metrics and a page.",
        "label": "Send labels that came back: a file, a folder, a bucket or a Kafka topic.",
        "refit": "Fit again on recent labels, promote the next version, or follow class shares.",
        "audit": "Compute the watch's numbers from logs in files or a database.",
        "export": "Write probabilities, monitoring rules, or tested versions for other programs.",
    },
    "Keep": {
        "doctor": "Say what would not work on this host, and what to do.",
        "keys": "Make and rotate the keys that sign receipts, and tokens.",
        "ledger": "Check, back up and export a ledger; take labels back.",
    },
}
"""The commands by what they are for, in the order that a user meets them."""
