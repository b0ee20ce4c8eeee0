"""The programs of users that end: a trainer that starts its service, one that launches it, a server, a trainer alone.

Each says ``ready`` once batches come, and trains on in steps of 10 ms. Workers read ahead of it by 1 MiB, not by as
much as they might: that would keep the machine busy for seconds. ``mistake`` as its first word: it raises then.
"""

_STEP = """
    if i == 3:
        print("ready", flush=True)
    if i > 5 and "mistake" in sys.argv:
        raise ZeroDivisionError("a mistake of the trainer's")
    time.sleep(0.01)
"""

LOAD = f"""
import sys, time, pydp2
data = pydp2.load(["a", "with a child", "b"], "endless.process", batch_size=8, workers=2, memory_limit="2MiB")
for i, batch in enumerate(data):
{_STEP}
"""

LAUNCH = f"""
import sys, time, pydp2
def main():
    with pydp2.launch(["a", "with a child", "b"], "endless.process", workers=2, memory_limit="2MiB") as service:
        with service.connect(batch_size=8) as data:
            train(data)
def train(data):
  for i, batch in enumerate(data):
{_STEP.replace(chr(10), chr(10) + "  ")}
main()
"""

SERVER = """
import sys, time, pydp2
files, bind = ["a", "with a child", "b"], f"ipc://{sys.argv[1]}"
with pydp2.launch(files, "endless.process", workers=2, memory_limit="2MiB", bind=bind) as service:
    print("address", service.address, flush=True)
    while service.poll() is None:
        time.sleep(0.01)
    sys.exit(f"the service ended: {service.poll()}")
"""

TRAINER = f"""
import sys, time, pydp2
data = pydp2.connect(sys.argv[1], batch_size=8)
for i, batch in enumerate(data):
{_STEP}
"""

SERVE = """
import runpy, sys
open("train.list", "w").write("a\\nwith a child\\nb\\n")
sys.argv = ["pydp2", "serve", "train.list", "--provider", "endless.process", "--workers", "2", "--memory-limit", "2MiB",
            "--bind", f"ipc://{sys.argv[1]}"]
runpy.run_module("pydp2", run_name="__main__", alter_sys=True)
"""
