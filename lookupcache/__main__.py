"""`python -m lookupcache`, the same as the command `lookupcache`."""

from lookupcache.cli import main

main(prog_name="lookupcache")
