"""`python -m mcddpm`, which is also how torchrun starts it."""

import sys

from mcddpm.cli import main

sys.exit(main())
