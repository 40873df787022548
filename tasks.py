from redrive import App, Backoff, Breaker, Budget, Retry

app = App("sqlite:///work.db")
app.dependency("stripe", budget=Budget(ratio=0.2, floor=10), breaker=Breaker(min_calls=10, open_for="30s"))


@app.task(name="charge", dependency="stripe", retry=Retry(max_attempts=8, backoff=Backoff.fixed("50ms")))
async def charge(order: int) -> None:
    raise ConnectionError("connection refused")  # their bad day


@app.task(name="receipt")
async def receipt(order: int) -> None:
    print(f"receipt for {order}")
