"""The equations of the limit, site by site: the experts in each regime, and the layers that all regimes share."""
