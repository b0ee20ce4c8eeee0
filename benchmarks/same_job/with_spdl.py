import random

import numpy as np
from spdl.pipeline import PipelineBuilder


def rows_of(name):
    rows = []
    with open(name) as lines:
        for line in lines:
            label, pixels = line.split(";")
            rows.append((np.array(pixels.split(), np.float32), int(label)))
    return rows


def collate(rows):
    pixels, labels = zip(*rows, strict=True)
    return np.stack(pixels), np.array(labels)


def shuffled_names(epoch):
    with open("train.list") as names:
        names = names.read().split()
    random.Random(f"7 {epoch}").shuffle(names)
    return names


def steps(checkpoint):
    first, done = checkpoint or (0, 0)
    for epoch in range(first, 2):
        builder = PipelineBuilder().add_source(shuffled_names(epoch))
        builder = builder.pipe(rows_of, concurrency=2, output_order="input").disaggregate().aggregate(32).pipe(collate)
        pipeline = builder.add_sink(4).build(num_threads=2)
        with pipeline.auto_stop():
            for number, (pixel, label) in enumerate(pipeline, 1):
                if epoch > first or number > done:
                    yield pixel, label, (epoch, number)
