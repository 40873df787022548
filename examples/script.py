"""A plain script that is producer and worker in one: `python examples/script.py`"""

from redrive import App, Backoff, Retry

app = App("sqlite:///work.db")


@app.task(name="greet", retry=Retry(max_attempts=3, backoff=Backoff.fixed("1s")))
async def greet(name: str) -> None:
    print(f"hello {name}", flush=True)


if __name__ == "__main__":
    app.enqueue_many(greet.draft(name) for name in ("ann", "bob"))
    app.run_worker(drain=True)  # returns when nothing is left; `redrive worker examples.script:app` stays
