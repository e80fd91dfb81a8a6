import sys

from omniset.cli import main

sys.exit(main())
