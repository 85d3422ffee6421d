"""`coterie` where no file can be longer than 4096 bytes, which the system refuses as it does when a disk is full."""

import resource

from coterie.cli.main import main

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    main()
