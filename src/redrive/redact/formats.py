"""Hide secrets that have a distinctive format: tokens with a provider's prefix, JSON Web Tokens, private keys.

The formats are those published by providers, as listed in the rules of gitleaks (github.com/gitleaks/gitleaks, MIT
licence); the expressions are our own. Lengths are looser than there, to hide truncated keys and future versions too.
Each begins with a literal and never backtracks, so the time is linear in the length of the text.
"""

from __future__ import annotations

import re
from functools import cache

HIDDEN = "***"

# Matches where a token may begin: also after an escape of JSON or a URL, whose last character could belong to a token.
_BEGIN = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2}))"
_BEGIN_RUN = r"(?:(?<![\w-])|(?<=\\[nrtbf])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2}))"
_END = r"(?![A-Za-z0-9])"

# A substring that the text in lower case must contain for the expression to be tried, and the expression.
_FORMATS: tuple[tuple[str, str], ...] = (
    # AWS: access key ids, Bedrock keys
    *((word, rf"{_BEGIN}{word.upper()}[A-Z0-9]{{16}}{_END}") for word in ("akia", "asia", "abia", "acca")),
    ("a3t", rf"{_BEGIN}A3T[A-Z0-9]{{17}}{_END}"),
    ("absk", rf"{_BEGIN}ABSK[A-Za-z0-9+/]{{80,}}+={{0,2}}"),
    ("bedrock-api-key-", r"bedrock-api-key-[A-Za-z0-9+/=]{20,}+"),
    # GitHub, GitLab
    *((f"{word}_", rf"{word}_[A-Za-z0-9]{{16,}}+") for word in ("ghp", "gho", "ghu", "ghs", "ghr")),
    ("github_pat_", r"github_pat_\w{20,}+"),
    *(
        (f"{word}-", rf"{word}-[\w.-]{{16,}}+")
        for word in (
            "glpat", "gldt", "glrt", "glcbt", "glptt", "glft", "glffct", "glimt", "glagent", "gloas", "glsoat", "glwt",
        )
    ),
    ("gr1348941", r"GR1348941[\w-]{20,}+"),
    # Slack, Stripe and services with the same format (Clerk, Svix), Twilio, SendGrid, Brevo, Mailchimp
    ("xox", r"xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{8,}+"),
    ("xapp-", r"xapp-\d-[A-Za-z0-9-]{8,}+"),
    ("xwfp-", r"xwfp-[A-Za-z0-9-]{8,}+"),
    *(
        (f"k_{word}_", rf"{_BEGIN}[spr]k_{word}_[A-Za-z0-9]{{8,}}+")
        for word in ("live", "test", "prod")
    ),
    ("whsec_", r"whsec_[A-Za-z0-9+/=_-]{8,}+"),
    ("sk", rf"{_BEGIN}SK[0-9a-f]{{32}}{_END}"),
    ("sg.", rf"{_BEGIN}SG\.[\w-]{{8,}}+\.[\w-]{{8,}}+"),
    ("xkeysib-", r"xkeysib-[a-f0-9]{32,}+(?:-[A-Za-z0-9]{16})?"),
    ("-us", rf"{_BEGIN}[0-9a-f]{{32}}-us\d{{1,2}}{_END}"),
    # Google: API keys, OAuth
    ("aiza", r"AIza[\w-]{30,}+"),
    ("ya29.", r"ya29\.[\w.-]{16,}+"),
    ("gocspx-", r"GOCSPX-[\w-]{20,}+"),
    ("1//0", rf"{_BEGIN}1//0[\w-]{{20,}}+"),
    # Azure: client secrets, personal access tokens of DevOps
    ("q~", r"[\w.~]{3}\dQ~[\w.~-]{28,}+"),
    ("azdo", rf"{_BEGIN}[A-Za-z0-9]{{72,80}}AZDO[A-Za-z0-9]{{4}}{_END}"),
    # AI providers: OpenAI, Anthropic, Hugging Face, Groq, Perplexity, Replicate, xAI
    ("sk-", rf"{_BEGIN_RUN}sk-(?=[\w-]*\d)[\w-]{{20,}}+"),
    ("hf_", rf"{_BEGIN}hf_[A-Za-z0-9]{{20,}}+"),
    ("api_org_", r"api_org_[A-Za-z]{30,}+"),
    ("gsk_", rf"{_BEGIN}gsk_[A-Za-z0-9]{{32,}}+"),
    ("pplx-", r"pplx-[A-Za-z0-9]{32,}+"),
    ("r8_", rf"{_BEGIN}r8_[A-Za-z0-9]{{32,}}+"),
    ("xai-", rf"{_BEGIN}xai-[A-Za-z0-9]{{40,}}+"),
    # Registries and build services: npm, PyPI, RubyGems, Docker, crates.io, Artifactory, Clojars, NuGet, Heroku
    ("npm_", rf"{_BEGIN}npm_[A-Za-z0-9]{{30,}}+"),
    ("pypi-ag", r"pypi-Ag[\w-]{50,}+"),
    ("rubygems_", r"rubygems_[a-f0-9]{32,}+"),
    ("dckr_", r"dckr_(?:pat|oat)_[\w-]{16,}+"),
    ("akcp", rf"{_BEGIN}AKCp[A-Za-z0-9]{{60,}}+"),
    ("cmvmd", rf"{_BEGIN}cmVmd[A-Za-z0-9]{{59,}}+"),
    ("clojars_", r"(?i:clojars)_[a-z0-9]{40,}+"),
    ("oy2", rf"{_BEGIN}oy2[a-z0-9]{{43}}{_END}"),
    ("hrku-", r"HRKU-[\w-]{30,}+"),
    # Clouds, infrastructure
    *((f"{word}_v1_", rf"{word}_v1_[a-f0-9]{{32,}}+") for word in ("doo", "dop", "dor")),
    ("ltai", rf"{_BEGIN}LTAI[A-Za-z0-9]{{12,26}}{_END}"),
    ("dapi", rf"{_BEGIN}dapi[a-f0-9]{{32}}(?:-\d)?{_END}"),
    ("hvs.", rf"{_BEGIN}hvs\.[\w-]{{20,}}+"),
    ("hvb.", rf"{_BEGIN}hvb\.[\w-]{{20,}}+"),
    ("atlasv1", rf"{_BEGIN}[A-Za-z0-9]{{14}}\.atlasv1\.[\w=-]{{30,}}+"),
    ("dp.", rf"{_BEGIN}dp\.(?:pt|st|ct|sa|scim|audit)\.(?:[\w-]{{1,40}}\.)?[A-Za-z0-9]{{40,}}+"),
    ("pul-", rf"{_BEGIN}pul-[a-f0-9]{{40}}{_END}"),
    ("tskey-", r"tskey-[a-z]+-[A-Za-z0-9-]{16,}+"),
    ("ops_eyj", r"ops_eyJ[A-Za-z0-9+/=]{60,}+"),
    ("age-secret-key-1", r"(?i:age-secret-key)-1[A-Za-z0-9]{40,}+"),
    ("fo1_", rf"{_BEGIN}fo1_[\w-]{{40,}}+"),
    ("fm", rf"{_BEGIN}fm(?:1[ar]|2)_[A-Za-z0-9+/]{{60,}}+={{0,3}}"),
    ("v1.0-", rf"{_BEGIN}v1\.0-[a-f0-9]{{24}}-[a-f0-9]{{100,}}+"),
    ("sha256~", rf"{_BEGIN}sha256~[\w-]{{43}}(?![\w-])"),
    ("pscale_", r"pscale_(?:tkn|pw|oauth|pwd)_[\w=.-]{20,}+"),
    ("4b1d", rf"{_BEGIN}4b1d[A-Za-z0-9]{{38}}{_END}"),
    ("sbp_", rf"{_BEGIN}sbp_[a-f0-9]{{40,}}+"),
    ("pnu_", rf"{_BEGIN}pnu_[A-Za-z0-9]{{36}}{_END}"),
    # Monitoring: Grafana, New Relic, Dynatrace, Sentry
    ("glsa_", r"glsa_[A-Za-z0-9]{24,}+(?:_[A-Fa-f0-9]{8})?"),
    ("glc_", rf"{_BEGIN}glc_[A-Za-z0-9+/=]{{32,}}+"),
    ("nr", rf"{_BEGIN}NR(?:AK|II|JS|RA|BR|SP|AA)-[A-Za-z0-9-]{{16,}}+"),
    ("dt0c01.", r"dt0c01\.[A-Za-z0-9]{16,}+(?:\.[A-Za-z0-9]{16,}+)?"),
    ("sntry", r"sntry[su]_[\w+/=]{20,}+"),
    # Shops, payments and mail
    *((f"{word}_", rf"{word}_[a-fA-F0-9]{{24,}}+") for word in ("shpat", "shpca", "shppa", "shpss", "shptka")),
    ("sq0", rf"{_BEGIN}sq0(?:atp|csp|idp)-[\w-]{{20,}}+"),
    ("eaaa", rf"{_BEGIN}EAAA[\w-]{{50,}}+"),
    ("eaa", rf"{_BEGIN}EAA[MC][A-Za-z0-9]{{60,}}+"),
    *((f"ez{word}k", rf"{_BEGIN}EZ{word.upper()}K[A-Za-z0-9]{{50,}}+") for word in ("a", "t")),
    ("flwsec", r"FLWSECK(?:_TEST)?-[A-Za-z0-9]{12,}+(?:-X)?"),
    ("shippo_", r"shippo_(?:live|test)_[a-fA-F0-9]{32,}+"),
    ("duffel_", r"duffel_(?:live|test)_[\w=-]{20,}+"),
    ("apikey_", r"pdl_(?:live|sdbx)_apikey_\w{16,}+"),
    # Developer tools
    ("atatt3", r"ATATT3[\w=-]{60,}+"),
    ("atctt3", r"ATCTT3[\w=-]{60,}+"),
    ("lin_api_", r"lin_api_[A-Za-z0-9]{32,}+"),
    ("ntn_", rf"{_BEGIN}ntn_[A-Za-z0-9]{{40,}}+"),
    ("pat", rf"{_BEGIN}pat[A-Za-z0-9]{{14}}\.[a-f0-9]{{64}}{_END}"),
    ("pmak-", r"PMAK-[a-f0-9]{20,}+(?:-[a-f0-9]{20,}+)?"),
    ("api-", rf"{_BEGIN}API-[A-Z0-9]{{26}}{_END}"),
    ("sgp_", r"sgp_(?:[a-fA-F0-9]{16}_|local_)?[a-fA-F0-9]{40}"),
    ("rdme_", r"rdme_[a-z0-9]{50,}+"),
    ("_mmk", rf"{_BEGIN}[A-Za-z0-9]{{6}}_[A-Za-z0-9]{{29}}_mmk{_END}"),
    ("a3-", rf"{_BEGIN}A3-[A-Z0-9]{{6}}-(?:[A-Z0-9]{{11}}|[A-Z0-9]{{6}}-[A-Z0-9]{{5}})(?:-[A-Z0-9]{{5}}){{3}}{_END}"),
    # Telegram bots (Discord's are below)
    (":aa", rf"{_BEGIN}\d{{6,16}}:AA[\w-]{{30,}}+"),
)  # fmt: skip
_form = cache(re.compile)  # compiled at first use: compiling all of them takes long
_LONG = re.compile(r"[\w.+/=~:-]{20}")  # no token is shorter, so texts without a match are skipped

_DISCORD = rf"{_BEGIN_RUN}[MNO][\w-]{{23,27}}\.[\w-]{{6}}\.[\w-]{{27,}}+"
_DISCORD_END = re.compile(r"\.[\w-]{6}\.[\w-]{27}")
_JWT = rf"{_BEGIN_RUN}eyJ[\w-]{{8,}}+(?:\.[\w-]*+){{2,4}}"
_KEY_BEGIN = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_KEY_LINES = r"(?:(?:\s|\\[nr])*+(?:(?:Proc-Type|DEK-Info): [^\n\\]*+|[A-Za-z0-9+/]{16,}+={0,2}(?![\w=])))++"
_PUTTY = r"(Private-Lines: \d{1,6}\s+)(?!\*\*\*)(?:[A-Za-z0-9+/=]++\s*+)++"


def hide_formats(text: str, low: str) -> str:
    """Return the text without secrets of a known format; `low` is the text in lower case."""
    if "-----begin" in low and "private key" in low:
        text = _hide_keys(text)
    if "private-lines" in low:
        text = _form(_PUTTY).sub(rf"\1{HIDDEN}", text)
    if _LONG.search(text) is None:
        return text
    for word, form in _FORMATS:
        if word in low:
            text = _form(form).sub(HIDDEN, text)
    if "." in text and _DISCORD_END.search(text):
        text = _form(_DISCORD).sub(HIDDEN, text)
    return _form(_JWT).sub(HIDDEN, text) if "eyj" in low else text


def _hide_keys(text: str) -> str:
    """Hide the contents of private keys in PEM, including truncated keys."""
    parts, at, ends = [], 0, True
    for begin in _form(_KEY_BEGIN).finditer(text):
        if begin.start() < at:
            continue
        end = text.find("-----END ", begin.end()) if ends else -1
        if end < 0:
            ends = False
            lines = _form(_KEY_LINES).match(text, begin.end())
            end = lines.end() if lines else begin.end()
        if end > begin.end():
            parts += [text[at : begin.end()], HIDDEN]
            at = end
    return "".join((*parts, text[at:]))
