"""A small `assay perplexity` as words."""

SIZES = ["--context-lengths", "32", "64", "--sparsity-levels", "0", "0.5", "0.8", "--fixed-sparsity", "0.8"]
PLACE = ["--executor", "serial", "--device", "cpu", "--quiet"]
METHODS = ["dense", "h2o", "window", "cab_v4:block_size=8"]


def words(tiny, text, out, *more, methods=METHODS):
    base = ["perplexity", "--model", tiny, "--datasets", text, "--methods", *methods, *SIZES, *PLACE, "--out", out]
    return [*base, *more]
