"""python -m lockstep: the console script."""

import sys

from lockstep._cli import main

sys.exit(main())
