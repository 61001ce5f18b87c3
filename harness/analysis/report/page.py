"""From sections to one HTML file that loads nothing: style, script and figures are inside it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from harness.analysis.report.document import Section
from harness.errors import MissingDependencyError

if TYPE_CHECKING:
    from jinja2 import Template

_PACKAGE = "harness.analysis.report"
#: What no text of a record may do to the page: control characters, those that turn the direction
#: of all that follows, and halves of characters, which no encoding has.
_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def page_html(title: str, subtitle: str, sections: Sequence[Section], footer: str) -> str:
    """Return the page, the same for the same sections. Every text is escaped by the template."""
    template = _template()
    from markupsafe import Markup  # jinja2's, so it is there

    css, script = _resource("report.css"), _resource("report.js")
    return template.render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        footer=footer,
        policy=_policy(css, script),
        css=Markup(css),  # this package's own file, as is the script
        script=Markup(script),
    )


def _policy(css: str, script: str) -> str:
    """Return a Content-Security-Policy under which nothing is loaded and nothing else runs."""
    return "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_hash(css)}'",
            f"script-src '{_hash(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def clean(value: Any) -> Any:
    """Return ``value`` with what cannot be shown in a text replaced."""
    if type(value) is not str:  # numbers, and markup of our own
        return value
    return _UNSHOWN.sub("\ufffd", value.replace("\r\n", "\n"))


@lru_cache(maxsize=1)
def _template() -> Template:
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise MissingDependencyError(
            f"a report needs jinja2 ({error}); install it: pip install 'hvdscale[analysis]'"
        ) from None
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=clean,
        keep_trailing_newline=True,
    )
    return environment.from_string(_resource("report.html.j2"))


def _resource(name: str) -> str:
    return resources.files(_PACKAGE).joinpath("templates", name).read_text(encoding="utf-8")
