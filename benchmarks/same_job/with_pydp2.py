import pydp2.torch


def steps(checkpoint):
    with pydp2.torch.loader("train.list", "digits_provider.process", batch_size=32, seed=7) as data:
        if checkpoint:
            data.load_state_dict(checkpoint)
        for _ in range(data.pass_id, 2):
            for step in data:
                yield step["pixel"], step["label"], data.state_dict()
