"""Numbers as the five papers print them, in percent where they do; None where a paper has none."""

# Tang 2024, table 2: ResNet-110 on CIFAR-100, 15 bins. Accuracy, entropy, ECE, AECE, SCE.
TANG = {
    "none": ("Uncalibrated", (74.15, 0.4742, 10.74, 10.71, 0.2763)),
    "temperature": ("Temperature scaling", (74.15, 0.8991, 1.71, 1.63, 0.1711)),
    "temperature-ece": ("TS by grid search", (74.15, 0.9239, 1.35, 1.38, 0.1717)),
    "vector": ("Vector scaling", (73.81, 0.8698, 2.29, 2.15, 0.1949)),
    "matrix": ("Matrix scaling", (62.03, 0.1552, 31.85, 31.85, 0.6842)),
    "ms-odir": ("MS-ODIR", (74.07, 0.9035, 1.79, 1.75, 0.1797)),
    "dirichlet-odir": ("Dir-ODIR", (74.10, 0.9160, 1.36, 1.31, 0.1780)),
}
# The same network, tables 2 and 11: ECE, and seconds on a V100.
TANG_CLAMPED = {
    "uncalibrated": (10.74, None),
    "TS": (1.71, None),
    "TS grid": (1.35, 13.0),
    "NC (CE), as printed": (1.67, None),
    "NC (FL), as printed": (0.89, 227.0),
    "NC (Eff.)": (1.23, 18.0),
}

# Wang 2021, tables 1 and 2: ResNet-32 on CIFAR-10. Accuracy, ECE, T, ECE after T, ECE after a histogram.
WANG = {
    "cross-entropy": (90.46, 6.43, 2.51, 0.95, 0.74),
    "label smoothing": (90.09, 2.72, 0.96, 2.54, 0.94),
    "L1 norm": (90.06, 2.93, 0.95, 2.71, 1.16),
    "focal loss": (87.84, 3.00, 0.76, 1.39, 1.65),
}

# Singh 2021, table 2: ResNet-50 on CIFAR-10. Brier, ECE, AUROC.
SINGH = {
    "baseline": (7.12, 2.69, 93.80),
    "temperature": (6.73, 1.35, 93.71),
    "entropy regularisation": (7.01, 2.37, 93.64),
    "label smoothing": (8.00, 3.82, 73.46),
    "mixup": (6.35, 2.67, 90.10),
    "focal": (7.50, 1.73, 92.40),
}
# Table 4: VGG-16, CIFAR-10. ECE, AUROC.
SINGH_BRANCHES = {"largest probability": (5.38, 92.5), "ConfidNet": (4.1, 92.55)}
# Table 3: VGG-16, CIFAR-10.1. ECE, AUROC.
SINGH_SHIFT = {"none": (11.28, 86.23), "temperature": (8.16, 86.10)}

# Ni 2025, table 5: accuracy, ECE, AECE, MCE on CIFAR-10.
NI = {
    "vanilla": (94.61, 3.68, 3.68, 29.64),
    "+ masked retraining": (94.66, 3.45, 3.42, 25.74),
    "+ gradient restriction": (94.28, 1.96, 1.95, 75.02),
    "+ restructured head": (95.23, 1.96, 1.89, 26.25),
    "+ static adaptive q": (95.23, 1.44, 1.39, 18.64),
    "+ decaying adaptive q (the paper's)": (95.26, 1.05, 1.02, 8.09),
}
# Table 2: CIFAR-10 networks, strange images of CIFAR-100 and SVHN. AUROC, FPR95.
NI_STRANGE = {
    "vanilla": (88.07, 56.79),
    "+ decaying adaptive q (the paper's)": (88.91, 54.11),
}

# Lin 2025, table 1, CIFAR-10: ECE before and after a temperature; cross-entropy by network,
LIN = {"resnet50_c10_cross_entropy": (4.36, 1.32), "kull_resnet110_c10": (4.70, 1.56)}
# and ResNet-50 by loss, with tables 3, 4 and 5: accuracy, ECE, ECE after T, AECE, SCE.
LIN_LOSSES = {
    "cross-entropy": (95.08, 4.36, 1.32, 4.34, 0.90),
    "Brier": (94.34, 4.29, 1.50, 4.28, 0.90),
    "weighted MMCE, 2": (95.04, 4.48, 1.41, 4.47, 0.92),
    "FLSD-53": (95.04, 1.26, 1.15, 1.56, 0.41),
    "dual focal, gamma 5": (94.63, 1.00, 1.00, 1.22, 0.40),
    "BSCE, gamma 4": (95.03, 0.88, 0.88, 0.96, 0.38),
    "BSCE-GRA, gamma 4": (94.69, 0.74, 0.74, 0.71, 0.38),
}
# Table 2: accuracy, ECE, ECE after T, AECE, AECE after T.
LIN_VARIANTS = {
    "FLSD-53": (95.04, 1.26, 1.15, 1.56, 1.45),
    "FLSD-53-GRA": (94.72, 0.88, 0.88, 1.19, 1.19),
    "dual focal, gamma 5": (94.63, 1.00, 1.00, 1.22, 1.22),
    "dual focal-GRA, gamma 5": (94.76, 0.93, 0.84, 0.77, 0.81),
    "BSCE, gamma 4": (95.03, 0.88, 0.88, 0.96, 0.96),
    "BSCE-GRA, gamma 4": (94.69, 0.74, 0.74, 0.71, 0.71),
}
# Table 6: ResNet-50 on CIFAR-100, ECE by the exponent; at 4 table 1 has 1.59 of the same network.
LIN_GAMMAS = {3: 2.78, 4: 1.13, 5: 2.83, 6: 5.13, 7: 6.96, 8: 9.28}
