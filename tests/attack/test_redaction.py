"""What `redact` hides and what it leaves alone: sixty secrets in fifty-five shapes, two thousand harmless texts, and
texts made to take long."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.attack.canaries import FIELDS, LOOKS, SHAPES, Shape, canaries, leaked, looks_drawn
from tests.support.attack.harmless_texts import harmless, own_tracebacks
from tests.support.attack.hostile_texts import UNITS, grown

from redrive.redact import HIDDEN, redact, redact_bytes, redact_json, redact_value

CPU_S = 100  # for 10 MB of a hostile text
VALUE_CPU_S = 60  # for 1 MB of one value behind each of these, of which a linear search needs a sixth
BEFORE_VALUES = ("token is ", "the password was '", "> AUTH ", "passphrase: ", '{"session": "', "mysql -h ", "https://")


def test_there_are_sixty_canaries_in_fifty_five_shapes(seed: int) -> None:
    assert (len(set(canaries(seed))), len({shape.name for shape in SHAPES})) == (60, 55)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_no_part_of_a_secret_is_shown_in_any_shape(shape: Shape, seed: int) -> None:
    for canary in canaries(seed):
        text = shape.text(canary.value)
        told = redact(text)
        for written in (canary.value, shape.written(canary.value)):
            assert leaked(written, told) is None or leaked(written, text) is None, (text, told)
        assert HIDDEN in told and redact(told) == told


@pytest.mark.parametrize("shape", LOOKS, ids=lambda shape: shape.name)
def test_what_looks_like_no_word_is_hidden_where_words_stand_as_well(shape: Shape, seed: int) -> None:
    for canary in canaries(seed):
        if canary.bare or looks_drawn(canary.value):
            text = shape.text(canary.value)
            told = redact(text)
            for written in (canary.value, shape.written(canary.value)):
                assert leaked(written, told) is None or leaked(written, text) is None, (text, told)
            assert redact(told) == told


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_may_hold_a_secret_hides_what_looks_like_one(name: str, seed: int) -> None:
    for canary in canaries(seed):
        if looks_drawn(canary.value) and not set(canary.value) & set(" (){}"):
            assert redact_value({name: canary.value}) == {name: HIDDEN}
    told = redact_value({"iban": "DE89 3704 0044 0532 0130 00", "card_number": "4111 1111 1111 1111", "cc": 1})
    assert told == {"iban": HIDDEN, "card_number": HIDDEN, "cc": 1}
    assert redact_value({"cardNumber": 4111111111111111, "other": 4111111111111111})["cardNumber"] == HIDDEN
    assert redact_value({name: "open"}) == {name: "open"} and redact_value({name: {"id": 5}}) == {name: {"id": 5}}


@pytest.mark.parametrize("text", ["passphrase: {}", "db:\n  password: {}\n  port: 5432", "PASSPHRASE={}"])
def test_a_passphrase_of_several_words_is_hidden_whole(text: str) -> None:
    assert redact(text.format("correct horse battery staple")) == text.format(HIDDEN)


@pytest.mark.parametrize("text", ["AUTH failed\nretry in 3 s", "> AUTH failed\n> QUIT", "AUTH required\t\n"])
def test_a_word_behind_auth_is_no_password_for_the_line_that_follows(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("around", ["{}", "x {} y", "({})", '"{}"', "\\n{}\\n", "%20{}%20", "a={};b", "<{}>", "\n{}\n"])
def test_a_token_with_a_form_of_its_own_is_hidden_anywhere(around: str, seed: int) -> None:
    for canary in canaries(seed):
        if canary.bare:
            told = redact(around.format(canary.value))
            assert leaked(canary.value, told) is None, told


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_secret_is_hidden_in_json_and_in_json_within_json(shape: Shape, seed: int) -> None:
    for canary in canaries(seed)[::3]:
        text = shape.text(canary.value)
        for body in (json.dumps({"said": [text]}), json.dumps({"said": text, "n": 1}, ensure_ascii=False)):
            told = json.loads(redact_json(body.encode()))["said"]
            assert leaked(canary.value, str(told)) is None, told
        assert leaked(canary.value, redact_value({"x": text})["x"]) is None


def test_a_secret_is_hidden_by_the_name_of_its_field_whatever_it_is(seed: int) -> None:
    names = (
        "password",
        "db_password",
        "accessToken",
        "X-Api-Key",
        "tokens",
        "Set-Cookie",
        "client_secret",
        "authorization",
    )
    for canary in canaries(seed):
        for name in names:
            told = redact_json(
                json.dumps({"a": [{name: canary.value}], name: [canary.value, {"x": canary.value}]}).encode()
            )
            assert leaked(canary.value, told.decode()) is None


def test_harmless_texts_are_not_changed(seed: int) -> None:
    texts = harmless(seed)
    assert len(texts) == 2000
    assert [text for text in [*texts, *own_tracebacks()] if redact(text) != text] == []


def test_harmless_json_is_not_changed_by_a_byte(seed: int) -> None:
    for text in harmless(seed)[::7]:
        body = json.dumps({"text": text, "ids": [text], "n": 1.50, "page_token": "abc", "max_tokens": 4096}).encode()
        assert redact_json(body) == body


@given(st.text())
def test_any_text_is_hidden_once_and_for_all(text: str) -> None:
    told = redact(text)
    assert redact(told) == told


@given(st.binary())
def test_any_bytes_stay_as_they_are_but_for_secrets(data: bytes) -> None:
    assert redact_bytes(redact_bytes(data)) == redact_bytes(data)
    assert redact_json(redact_json(data)) == redact_json(data)


@given(
    st.text(alphabet="ab=:'\" \\\n{}[](),&;%<>/@-", max_size=60),
    st.sampled_from(["password", "--token", "Cookie:", "://"]),
)
def test_odd_quotes_and_signs_around_a_name_raise_nothing(text: str, name: str) -> None:
    told = redact(f"{text}{name}{text}")
    assert redact(told) == told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("run --token = abc1x", "run --token = ***"),
        (" =[--token =[", " =[--token =***"),
        (" :@--token :@", " :@--token :***"),
        (" =/'--token =/'\"", " =/'--token =***'\""),
        (" : [-password : [-", " : [-password : ***"),
        (' =a";-password =a";-', ' =a";-password =***";-'),
        (" = a\\@[a&<-apassword = a\\@[a&<-a", " = a\\@[a&<-apassword = ***&<-a"),
    ],
)
def test_the_sign_behind_a_flag_is_not_taken_for_its_value(text: str, told: str) -> None:
    assert (redact(text), redact(told)) == (told, told)


@pytest.mark.parametrize(
    "around",
    [
        "\\<=",
        ",>=",
        ";]-=",
        "&=;=",
        " =>=",
        "\\->)=,a",
        '@(&{{=%(;-\\b)b%%]-;%b>[=<&(\\:@\\(:(/:%)>>b\n\\<"a(,]a{)]]',
        ';,}<=\\=-b;]}]::>=,b{=["{&a;:"]]@&>}-[{,a";<&::"{"',
    ],
)
def test_what_is_left_of_a_cookie_does_not_become_another_cookie(around: str) -> None:
    told = redact(f"{around}Cookie:{around}")
    assert told.startswith(f"{around}Cookie:") and HIDDEN in told
    assert redact(told) == told


@pytest.mark.slow
def test_ten_megabytes_made_to_take_long_end_in_time(soak: bool, seed: int) -> None:
    """In a process that may take only so much of the processor's time: what is not linear takes days."""
    most_s = CPU_S * (len(UNITS) if soak else 1)
    units = UNITS if soak else (("password='", "://a:")[seed % 2],)
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_CPU, ({most_s}, {most_s}))
from redrive.redact import redact
for unit in {units!r}:
    redact((unit * (10_000_000 // len(unit) + 1))[:10_000_000])
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=most_s).returncode == 0


@pytest.mark.slow
def test_one_value_of_a_megabyte_ends_in_time() -> None:
    """No unit again and again, but one long value behind what announces it: what is quadratic takes half an hour."""
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_CPU, ({VALUE_CPU_S}, {VALUE_CPU_S}))
from redrive.redact import redact
for before in {BEFORE_VALUES!r}:
    for first, last in ("Aa", "aA", "a1", "a/", "a "):
        redact(before + first * 500_000 + last * 500_000)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=10 * VALUE_CPU_S).returncode == 0


@pytest.mark.parametrize("unit", UNITS)
def test_a_secret_behind_a_hostile_text_is_hidden_all_the_same(unit: str) -> None:
    assert leaked("hunter2-and-more", redact(grown(unit, 30_000) + "\n\npassword=hunter2-and-more")) is None


@pytest.mark.soak
@pytest.mark.parametrize("unit", UNITS)
def test_time_grows_with_the_length_of_a_hostile_text(unit: str) -> None:
    small, large = (_cpu_s(grown(unit, size)) for size in (1_000_000, 10_000_000))
    assert large < 25 * small + 0.5


def _cpu_s(text: str) -> float:
    began_s = time.process_time()
    redact(text)
    return time.process_time() - began_s


def test_a_token_without_a_digit_is_hidden() -> None:
    assert redact("sk_live_PENVSCyRsitxpTISIIORpeIn") == HIDDEN
