"""Eleven images and one that claims to be 200,000 pixels wide and high: `python examples/poison_image.py`"""

from redrive import App, Backoff, Poison, Retry
from redrive.message import Lane

app = App("sqlite:///images.db")


@app.task(
    name="thumbnail",
    isolation="process",
    memory="256MiB",
    retry=Retry(backoff=Backoff.fixed("200ms")),
    poison=Poison(crashes=3),
)
def thumbnail(name: str, width: int, height: int) -> None:
    pixels = bytearray(3 * width * height)  # what a decoder does with the size in the header
    print(f"{name}: {len(pixels) // 1024} KiB", flush=True)


if __name__ == "__main__":  # a child process imports this file too
    app.enqueue_many([thumbnail.draft(f"cat-{n}.png", 640, 480) for n in range(11)])
    bomb = thumbnail.enqueue("bomb.png", 200_000, 200_000)
    app.run_worker(concurrency=4, drain=True)
    print(f"bomb.png is in {bomb.state} for {app.job(bomb.id).reason}:")
    for fault in app.job(bomb.id).faults:
        print(fault.text.partition("; worker")[0])
    assert [message.id for message in app.dlq.all(lane=Lane.QUARANTINE)] == [bomb.id]
