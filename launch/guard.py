"""python -m launch.guard STAGE: waits until the launcher that started it is gone, then stops what it has left behind.

Its input is one session a line and ends with the launcher, however that ends; after an orderly end the sessions are
empty and there is nothing to do.
"""

import sys
import time

from launch.session import Session

TICK = 0.2  # seconds between two looks


def main() -> None:
    sessions = [Session(int(line), sys.argv[1]) for line in sys.stdin]
    while sessions:
        sessions = [session for session in sessions if session.tick(stopping=True)]
        time.sleep(TICK)


if __name__ == "__main__":
    main()
