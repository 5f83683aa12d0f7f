"""The seven kinds of what is broken, by their names."""

from __future__ import annotations

from tests.fuzz import arrays, configs, flags, plans, results, stores

KINDS = {
    kind.name: kind
    for kind in (plans.KIND, configs.KIND, stores.BYTES, stores.ROWS, results.KIND, arrays.KIND, flags.KIND)
}
