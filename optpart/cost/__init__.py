"""Cost models: what one run of a call takes, read off its signature alone.

``devices`` (rates and bandwidths, with sources), ``bytes`` (bytes moved), ``flops`` (torch's own counter),
``roofline`` (the two together, the default), ``model`` (the protocol, the names, and Graph -> Problem).
"""
