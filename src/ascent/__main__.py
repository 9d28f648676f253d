"""`python -m ascent`."""

import sys

from ascent.cli import main

sys.exit(main())
