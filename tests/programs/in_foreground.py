"""Make the terminal that of this process, so that its Ctrl-C reaches it, and run a program in its place."""

import fcntl
import os
import sys
import termios

if __name__ == "__main__":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.execv(sys.argv[1], sys.argv[1:])
