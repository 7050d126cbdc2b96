"""Reads a capture with nfstream, statistics on and payload dissection off, and prints the number of flows."""

import sys

from nfstream import NFStreamer

if __name__ == "__main__":
    flows = 0
    for _ in NFStreamer(source=sys.argv[1], statistical_analysis=True, n_dissections=0, idle_timeout=60, active_timeout=300):
        flows += 1
    print("flows", flows)
