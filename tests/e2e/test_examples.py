"""The examples do what they say, some against the loopback endpoint that comes with them."""

import re
import sys
from pathlib import Path

import pytest
from tests.support.examples import EXAMPLES, run


def sync(home: Path, count: int) -> str:
    return run(home, sys.executable, str(EXAMPLES / "bulk_sync.py"), str(count)).stdout.strip()


@pytest.mark.slow
def test_a_bulk_sync_retries_what_may_pass_and_tells_what_cannot(tmp_path: Path) -> None:
    assert sync(tmp_path, 300) == "297 synced, 18 retried, 3 dead: 422"


@pytest.mark.soak
def test_ten_thousand_records_are_synced(tmp_path: Path) -> None:
    assert sync(tmp_path, 10_000) == "9,900 synced, 600 retried, 100 dead: 422"


@pytest.mark.slow
def test_a_payment_is_booked_once_though_its_webhook_comes_twice_and_the_database_blinks(tmp_path: Path) -> None:
    said = run(tmp_path, sys.executable, str(EXAMPLES / "payment_webhook.py"), "20").stdout.strip()
    assert said == "40 webhooks, 20 bookings of 20 payments, 20 receipts"


@pytest.mark.slow
def test_a_rate_keeps_below_a_limit_that_others_find_out_by_being_refused(tmp_path: Path) -> None:
    careful, bold = run(tmp_path, sys.executable, str(EXAMPLES / "rate_limited.py")).stdout.splitlines()
    assert re.fullmatch(r"bold: 40 done, \d+ answers 429", bold)
    assert careful == "careful: 40 done, 0 answers 429"


@pytest.mark.slow
def test_cuts_of_a_video_go_through_its_pipeline_in_order_and_one_that_cannot_holds_its_video_only(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, sys.executable, str(EXAMPLES / "video_pipeline.py"), "12")
    assert done.stdout.splitlines() == [
        "12 videos: 11 have both cuts published, all steps in order",
        "held, with 1 behind it: video-1, cut 2: the file is no video",
        "all are through: 93 steps done, 1 discarded",
        "video-1 ends with (1, 'publish'); 0 dead, 0 waiting",
    ]
    assert "failed and runs again" in done.stderr and "the transcoder restarts" in done.stderr


@pytest.mark.slow
def test_each_customer_gets_one_invoice_a_night_though_a_night_is_run_again_and_clocks_are_put_forward(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, sys.executable, str(EXAMPLES / "nightly_invoices.py"), "30")
    assert done.stdout.splitlines() == [
        "2026-03-28: 29 invoices over 2900 EUR, 1 left out",
        "2026-03-29: 29 invoices over 2900 EUR, 1 left out",
        "at 02:00 +0100 and 03:00 +0200: 58 invoices of 29 customers",
        "2 dead: customer-013 has no address",
    ]
    assert "failed and runs again" in done.stderr and "the printer does not answer" in done.stderr


@pytest.mark.slow
def test_orders_that_an_outage_stopped_are_resumed_and_those_that_were_rejected_are_undone_once(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, sys.executable, str(EXAMPLES / "order_saga.py"), "20")
    assert done.stdout.splitlines() == [
        "the carrier is down: 4 × order cancelled, 16 × order partial, 4 × undo done",
        "the carrier is back: 4 × order cancelled, 16 × order done, 4 × undo done",
        "16 booked, 20 charged, 4 refunded, 4 released, 20 reserved",
    ]
    assert "the carrier does not go there" in done.stderr


@pytest.mark.slow
def test_an_image_that_exhausts_memory_is_quarantined_and_the_others_are_done(tmp_path: Path) -> None:
    done = run(tmp_path, sys.executable, str(EXAMPLES / "poison_image.py"))
    assert sorted(re.findall(r"cat-(\d+)\.png: 900 KiB", done.stderr), key=int) == [str(n) for n in range(11)]
    assert "bomb.png is in quarantine for crashed:" in done.stdout and done.stdout.count("ran out of memory") == 3
