"""A web application with a worker inside: `uvicorn examples.fastapi_app:web`"""

from fastapi import FastAPI, HTTPException

from redrive import App
from redrive.contrib.starlette import lifespan

app = App("sqlite:///work.db")
web = FastAPI(lifespan=lifespan(app))


@app.task(name="mail.welcome", queue="mail")
async def welcome(to: str) -> None:
    print(f"welcome, {to}", flush=True)


@web.post("/people", status_code=202)
async def sign_up(email: str) -> dict[str, str]:
    ref = await welcome.aenqueue(email)
    return {"job": ref.id}


@web.get("/jobs/{id}")
async def job(id: str) -> dict[str, str | int]:
    found = await app.ajob(id)
    if found is None:
        raise HTTPException(404, "it is done, or never existed")
    return {"state": found.state, "attempt": found.attempt}
