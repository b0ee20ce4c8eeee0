from pathlib import Path

import numpy as np
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory


def convert():
    with open("train.list") as names, MDSWriter(out="digits.mds", columns={"pixel": "ndarray", "label": "int"}) as out:
        for name in names.read().split():
            with open(name) as lines:
                for line in lines:
                    label, pixels = line.split(";")
                    out.write({"pixel": np.array(pixels.split(), np.float32), "label": int(label)})


def steps(checkpoint):
    clean_stale_shared_memory()
    if not Path("digits.mds").exists():
        convert()
    dataset = StreamingDataset(local="digits.mds", shuffle=True, shuffle_seed=7, batch_size=32)
    data = StreamingDataLoader(dataset, batch_size=32, num_workers=2)
    if checkpoint:
        data.load_state_dict(checkpoint)
    for _ in range(checkpoint["epoch"] if checkpoint else 0, 2):
        for step in data:
            yield step["pixel"], step["label"], data.state_dict()
