"""All of the library's speed in one table, exact and smooth: `python -m tests.benchmarks [--json FILE]`."""

from tests.benchmarks import exact, smooth
from tests.benchmarks._clock import arguments, report

options = arguments(__doc__).parse_args()
report(exact.table(options) + smooth.table(options), options.json)
