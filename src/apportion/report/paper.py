"""The paper's numbers, as data: test accuracy in per cent, mean and standard deviation of five runs."""

SIZES = (16, 32, 64, 128)
LARGER = (256, 512, 1024)  # bags, of which the paper has none

# table, method -> (mean, standard deviation) at bags of 16, 32, 64, 128
TABLES = {
    "table1": {
        "dllp": ((87.69, 0.54), (82.88, 0.47), (71.11, 0.56), (46.68, 0.75)),
        "dllp+plot": ((90.01, 0.23), (86.87, 0.24), (79.69, 0.44), (55.21, 0.56)),
        "vat": ((88.36, 0.29), (83.01, 0.46), (70.53, 0.98), (51.25, 0.88)),
        "vat+plot": ((89.87, 0.31), (87.89, 0.29), (79.33, 0.39), (63.28, 0.43)),
        "gan": ((86.97, 0.42), (83.13, 0.43), (77.21, 0.39), (68.37, 1.21)),
        "gan+plot": ((89.15, 0.35), (88.21, 0.23), (84.14, 0.68), (79.09, 0.44)),  # P3: the text says 79.08
    },
    "table2": {
        "dllp": ((61.95, 0.54), (55.22, 0.77), (41.21, 1.36), (15.17, 1.07)),
        "dllp+plot": ((65.20, 0.41), (61.37, 0.74), (49.55, 0.86), (23.10, 0.29)),
        "vat": ((65.21, 0.39), (58.65, 0.43), (45.53, 1.09), (21.25, 0.81)),
        "vat+plot": ((65.39, 0.28), (62.01, 0.30), (52.75, 0.51), (28.23, 0.40)),
        "gan": ((61.66, 0.49), (56.78, 0.55), (50.29, 1.12), (33.65, 1.25)),
        "gan+plot": ((65.41, 0.35), (61.68, 0.48), (55.66, 0.41), (43.44, 0.71)),
    },
}

# (row, run folder, mean, standard deviation); P2: table 1 gives 0.56 for the deviation of the same baseline
TABLE_3 = (
    ("baseline: DLLP", "table1/dllp/64", 71.11, 0.36),
    ("CE", "table3/ce/64", 72.27, 0.39),
    ("SCE", "table3/sce/64", 74.21, 0.24),
    ("CE + OT", "table3/ce+ot/64", 78.57, 0.32),
    ("SCE + OT", "table3/sce+ot/64", 79.69, 0.44),
    ("CE + OT + mixup", "table1/dllp+plot/64", 84.39, 0.22),
    ("SCE + OT + mixup", "table3/sce+ot+mixup/64", None, None),
)

NAMES = {
    "dllp": "DLLP",
    "gan": "LLP-GAN",
    "vat": "LLP-VAT",
    "rot": "ROT",
    "plot": "PLOT",
    "two-views": "two views",
    "supervised": "supervised",
}


def title_of(method: str) -> str:
    """dllp+plot -> DLLP + PLOT."""
    return " + ".join(NAMES.get(part, part) for part in method.split("+"))


def paper_number(name: str) -> float | None:
    """The paper's accuracy of a cell such as table1/dllp+plot/64, None where it has none."""
    table, _, rest = name.partition("/")
    method, _, size = rest.partition("/")
    row = TABLES.get(table, {}).get(method)
    if row is not None and size in map(str, SIZES):
        return row[SIZES.index(int(size))][0]
    return next((mean for _, cell, mean, _ in TABLE_3 if cell == name), None)
