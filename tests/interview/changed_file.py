"""A copy of one of the package's YAML files in which something was changed, as by a hasty editor."""


def changed(file, folder, old, new):
    """The path of a copy in `folder` whose first `old`, which must be there, is `new`."""
    text = file.read_text(encoding="utf-8")
    assert old in text
    copy = folder / file.name
    copy.write_text(text.replace(old, new, 1), encoding="utf-8")
    return copy
