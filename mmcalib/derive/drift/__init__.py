"""Whether traffic is still what a configuration was calibrated for, by what requests say themselves
or by what a server counts.
"""
