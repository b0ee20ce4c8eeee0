import random

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader


class Digits(IterableDataset):
    def __init__(self, files, seed):
        self.files, self.seed, self.epoch = files, seed, 0

    def __iter__(self):
        info = get_worker_info()
        rng = random.Random(f"{self.seed} {self.epoch} {info.id}")
        files = self.files[info.id :: info.num_workers]
        rng.shuffle(files)
        pool = []
        for file in files:
            with open(file) as lines:
                for line in lines:
                    label, pixels = line.split(";")
                    pool.append((torch.tensor([float(p) for p in pixels.split()]), int(label)))
                    if len(pool) > 512:
                        at = rng.randrange(len(pool))
                        pool[at], pool[-1] = pool[-1], pool[at]
                        yield pool.pop()
        rng.shuffle(pool)
        yield from pool


def steps(checkpoint):
    with open("train.list") as lines:
        dataset = Digits(lines.read().split(), seed=7)
    data = StatefulDataLoader(dataset, batch_size=32, num_workers=2)
    first = 0
    if checkpoint:
        first = checkpoint["epoch"]
        data.load_state_dict(checkpoint["data"])
    for epoch in range(first, 2):
        dataset.epoch = epoch
        for pixel, label in data:
            yield pixel, label, {"epoch": epoch, "data": data.state_dict()}
