"""`python -m app` is `shiftwatch`."""

import sys

from app.cli import main

sys.exit(main())
