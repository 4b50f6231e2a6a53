"""An extension of griffe: the examples of docstrings become blocks of code."""

import re

import griffe

EXAMPLE = re.compile(r"((?:^|(?<=\n))[ ]*>>> (?:.+\n?)+)")


class Doctests(griffe.Extension):
    """Put each paragraph that starts with a prompt into a block of its own."""

    def on_object(self, *, obj, **_):
        """Change the docstring of a class, function, module or attribute."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(_block, obj.docstring.value)


def _block(found):
    return f"```pycon\n{found[1].rstrip()}\n```\n"
