"""`python -m fp4moe` is the command line."""

import sys

from fp4moe.cli import main

sys.exit(main())
