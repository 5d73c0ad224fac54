"""HTTP pieces that know no route: body reading, error table, streaming response, middleware."""
