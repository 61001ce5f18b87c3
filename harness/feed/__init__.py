"""How samples reach the device: ``device``, ``host`` or ``disk``; one file a framework."""
