"""Cuts of videos on their way to viewers, each video's in order: `python examples/video_pipeline.py [VIDEOS]`

Each video is uploaded twice, the second cut right behind the first. A cut goes through four tasks; each enqueues the
next one in the commit that marks it as done. All steps of one video are in one group of a strict queue, so each step
takes the first cut before the second, though the transcoding of every third video fails at first. Other videos go on
meanwhile.

One video's second cut cannot be transcoded. It dies, and its group waits for a person, while nothing more of that video
is published. At the end the person looks at it and discards it, and the first cut goes on.
"""

import sys

from redrive import App, Backoff, Context, Reject, Retry

app = App("sqlite:///videos.db")
app.queue("videos", group_order="strict", on_dead="block", concurrency=8)
steps = Retry(max_attempts=5, backoff=Backoff("20ms", cap="200ms"))
seen: list[tuple[str, str, int]] = []  # what was done, in the order in which it was done
on_show: dict[str, int] = {}  # the cut of each video that viewers get


@app.task(name="video.upload", queue="videos", ctx=True, retry=steps)
def upload(ctx: Context, video: str, cut: int) -> None:
    seen.append((video, "upload", cut))
    ctx.enqueue(transcode.using(group=video), video, cut)


@app.task(name="video.transcode", queue="videos", ctx=True, retry=steps)
def transcode(ctx: Context, video: str, cut: int) -> None:
    if (video, cut) == ("video-1", 2):
        raise Reject(f"{video}, cut {cut}: the file is no video")
    if ctx.attempt == 1 and int(video.removeprefix("video-")) % 3 == 0:
        raise ConnectionError("the transcoder restarts")
    seen.append((video, "transcode", cut))
    ctx.enqueue(thumbnails.using(group=video), video, cut)


@app.task(name="video.thumbnails", queue="videos", ctx=True, retry=steps)
def thumbnails(ctx: Context, video: str, cut: int) -> None:
    seen.append((video, "thumbnails", cut))
    ctx.enqueue(publish.using(group=video), video, cut)


@app.task(name="video.publish", queue="videos", retry=steps)
def publish(video: str, cut: int) -> None:
    seen.append((video, "publish", cut))
    on_show[video] = cut


def in_order(video: str) -> bool:
    """Whether each step took the first cut before the second, and each cut its steps one after another."""
    mine = [(step, cut) for name, step, cut in seen if name == video]
    names = ("upload", "transcode", "thumbnails", "publish")
    steps_of = {cut: [step for step, each in mine if each == cut] for cut in (1, 2)}
    cuts_of = {name: [cut for step, cut in mine if step == name] for name in names}
    return all(taken == list(names[: len(taken)]) for taken in steps_of.values()) and all(
        cuts == sorted(cuts) for cuts in cuts_of.values()
    )


def main(videos: int) -> None:
    names = [f"video-{number}" for number in range(videos)]
    app.enqueue_many(upload.using(group=name).draft(name, cut) for name in names for cut in (1, 2))
    app.run_worker(drain=True)
    second = sum(cut == 2 for cut in on_show.values())
    print(f"{videos} videos: {second} show their second cut, {sum(map(in_order, names))} went in order")
    for dead in app.dlq.select("task:video.transcode"):
        print(f"held, with {app.counts().scheduled} behind it: {dead.faults[-1].text}")
        app.dlq.discard([dead.id], actor="ann", reason="the customer sends another file")
    app.run_worker(drain=True)
    left = app.counts()
    print(f"video-1 shows cut {on_show['video-1']}; {left.dead} dead, {left.ready + left.scheduled} waiting")


main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
