"""Cost models: what one run of a call takes, read off its signature alone.

``devices`` (rates and bandwidths, with sources), ``bytes`` (bytes moved), ``flops`` (torch's own counter),
``roofline`` (the two together, the default), ``model`` (the protocol, the names, and Graph -> Problem).
Measured: ``inputs`` (a signature as a call that can be run), ``timing``, ``workspace`` (memory of a call),
``cache`` (measurements on disk), ``machine`` (where they hold), ``profiled`` (the models made of them), ``calibrate``
(the device "here": measured bandwidth and rates).
"""
