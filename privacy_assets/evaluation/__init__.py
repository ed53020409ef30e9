"""Evaluation of tables: releases, exchangeability, power and leak studies."""
