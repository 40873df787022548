"""Watch a store in a terminal, and repair what is in it: `redrive top`.

In the order in which a figure reaches the terminal: a `screen.Screen` reads it of the `model` on a thread (`reader`),
at a `pace` that keeps the processor free; `layout` makes lines of it, and `app.Top` paints those that changed
(`lines`). The seven screens and those that they lead to are in `screens`. Only `app`, `ask` and `lines` know Textual.
"""

from __future__ import annotations

from .app import Top
from .model import Model

__all__ = ["Model", "Top"]
