import grain
import numpy as np


class Digits:
    def __init__(self):
        self.rows = []
        with open("train.list") as names:
            for name in names.read().split():
                with open(name) as lines:
                    self.rows += lines

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        label, pixels = self.rows[index].split(";")
        return {"pixel": np.array(pixels.split(), np.float32), "label": int(label)}


def steps(checkpoint):
    dataset = grain.MapDataset.source(Digits()).seed(7).shuffle().repeat(2).batch(32).to_iter_dataset()
    data = iter(dataset.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=2)))
    if checkpoint:
        data.set_state(checkpoint)
    for step in data:
        yield step["pixel"], step["label"], data.get_state()
