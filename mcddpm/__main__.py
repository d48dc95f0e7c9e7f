"""`python -m mcddpm`, which is also how torchrun starts it."""

import os
import sys

from mcddpm.cli import main
from mcddpm.system import processes

code = main()
if processes.world() > 1:
    # torch's data-parallel wrapper keeps gloo's threads beyond the end of their group. One that meets a Python which is
    # just ending aborts the process, after all its work was done: so it ends here and now.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
