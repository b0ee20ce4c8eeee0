"""Train a GPT of two layers on a packed mixture of JSON lines, in one process or on the ranks of torchrun."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import pydp2
import pydp2.torch

LENGTH, WIDTH, HEADS = 256, 64, 4


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(257, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, 257)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        seen = (segments[:, :, None] == segments[:, None, :]).tril()  # what comes before a token in its own document
        x = self.tokens(tokens) + self.places(places)
        return self.head(self.layers(x, mask=~seen.repeat_interleave(HEADS, 0)))


def main(folder: Path, steps: int, checkpoint: Path) -> None:
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = GPT()
    trained = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sources = {str(folder / "code.list"): 0.7, str(folder / "text.list"): 0.3}
    mixed = pydp2.mix(sources, "jsonl_tokens.process", batch_size=32, seed=7, stopping_strategy="cycle_forever")
    rows = pydp2.pack_sequences(mixed, slot="tokens", length=LENGTH, batch_size=4, balance="attention")
    with pydp2.torch.loader(rows) as data:
        parts = {"model": model, "optimizer": optimizer, "data": data}
        saved = torch.load(checkpoint) if checkpoint.exists() else {"step": 0}
        for name in parts if saved["step"] else ():
            parts[name].load_state_dict(saved[name])
        for step, batch in zip(range(saved["step"] + 1, steps + 1), data, strict=False):
            tokens, places, segments = batch["tokens"], batch["position_ids"], batch["segment_ids"]
            follows = places[:, 1:] > 0  # the first token of a document follows nothing
            logits = trained(tokens[:, :-1], places[:, :-1], segments[:, :-1])[follows]
            loss = nn.functional.cross_entropy(logits, tokens[:, 1:][follows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not dist.is_initialized() or dist.get_rank() == 0:
                print(step, loss.item(), flush=True)
                if step % 10 == 0:
                    states = {name: part.state_dict() for name, part in parts.items()}
                    torch.save(states | {"step": step}, f"{checkpoint}.new")
                    Path(f"{checkpoint}.new").replace(checkpoint)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
