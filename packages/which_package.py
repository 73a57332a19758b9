"""The answer to `pip install .` in the repository's root, where there is no package."""

SENTENCE = (
    "expected the folder of a package, not the repository's root: install ./packages/linattn for "
    "the operator, CPU kernels and models, or ./packages/linattn-core for the operator alone"
)


def refuse(*_: object, **__: object) -> None:
    """Ends what pip began, in one sentence."""
    raise SystemExit(SENTENCE)


get_requires_for_build_wheel = build_wheel = refuse
get_requires_for_build_editable = build_editable = refuse
get_requires_for_build_sdist = build_sdist = refuse
