"""The calibrated configuration in every form that an engine is started from: a module each, by its
name.
"""
