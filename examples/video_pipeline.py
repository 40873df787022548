"""Cuts of videos on their way to viewers, each video's in order: `python examples/video_pipeline.py [VIDEOS]`

Each video is uploaded twice, the second cut right behind the first. A cut is a chain of four steps, and all chains are
one batch. All steps of one video are in one group of a strict queue, so each step takes the first cut before the
second, though every third video fails at first to be transcoded. One second cut cannot be: it dies, and holds its
video, and no other, until a person discards it. The batch tolerates that.
"""

import sys

from redrive import App, Backoff, Context, Reject, Retry

app = App("sqlite:///videos.db")
app.queue("videos", group_order="strict", on_dead="block", concurrency=8)
retry = Retry(max_attempts=5, backoff=Backoff("20ms", cap="160ms"))
done: dict[str, list[tuple[int, str]]] = {}  # the cuts and steps of each video, as they were done


@app.task(name="video.upload", queue="videos", retry=retry)
def upload(video: str, cut: int) -> None:
    done.setdefault(video, []).append((cut, "upload"))


@app.task(name="video.transcode", queue="videos", ctx=True, retry=retry)
def transcode(ctx: Context, video: str, cut: int) -> None:
    if (video, cut) == ("video-1", 2):
        raise Reject(f"{video}, cut {cut}: the file is no video")
    if ctx.attempt == 1 and int(video.removeprefix("video-")) % 3 == 0:
        raise ConnectionError("the transcoder restarts")
    done[video].append((cut, "transcode"))


@app.task(name="video.thumbnails", queue="videos", retry=retry)
def thumbnails(video: str, cut: int) -> None:
    done[video].append((cut, "thumbnails"))


@app.task(name="video.publish", queue="videos", retry=retry)
def publish(video: str, cut: int) -> None:
    done[video].append((cut, "publish"))


@app.task(name="videos.report", ctx=True)
def report(ctx: Context) -> None:
    print(f"all are through: {ctx.batch.counts.done} steps done, {ctx.batch.counts.discarded} discarded")


STEPS = {"upload": upload, "transcode": transcode, "thumbnails": thumbnails, "publish": publish}


def main(videos: int) -> None:
    cuts = [(f"video-{n}", cut) for n in range(videos) for cut in (1, 2)]
    chains = [app.chain(*(step.using(group=cut[0]).draft(*cut) for step in STEPS.values())).draft() for cut in cuts]
    app.batch(chains, name="videos", tolerate=1, on_success=report.draft()).enqueue()
    app.run_worker(drain=True)
    in_order = sum(each == [(cut, step) for step in STEPS for cut in (1, 2)] for each in done.values())
    print(f"{videos} videos: {in_order} have both cuts published, all steps in order")
    [dead] = app.dlq.select("task:video.transcode")
    print(f"held, with {app.counts().parked} behind it: {dead.faults[-1].text}")
    app.dlq.discard([dead.id], actor="ann", reason="the customer sends another file")
    app.run_worker(drain=True)
    left = app.counts()
    print(f"video-1 ends with {done['video-1'][-1]}; {left.dead} dead, {left.waiting} waiting")


main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
