# calib-serve watch alone: no torch, no server.
#   docker build -f watch.Dockerfile -t calib-serve-watch .
FROM python:3.11.16-slim-trixie@sha256:be1575ed968de893bd54f4c56315ff7c4736ce522c1bca08fd521731aafc0d76 AS build
COPY constraints.txt .
RUN python -m venv --without-pip /opt/venv \
    && pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --only-binary=:all: \
       -c constraints.txt 'calib-serve[postgres]==@version' \
    # Tests that packages bring along are 40 MB.
    && find /opt/venv -type d \( -name tests -o -name test \) -prune -exec rm -r {} +

FROM python:3.11.16-slim-trixie@sha256:be1575ed968de893bd54f4c56315ff7c4736ce522c1bca08fd521731aafc0d76
COPY --from=build /opt/venv /opt/venv
# Nobody in particular; /state holds the ledger, where that is SQLite.
RUN useradd --uid 10001 watch && install -d -m 1777 /state
ENV PATH=/opt/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 10001
WORKDIR /state
EXPOSE 9300
HEALTHCHECK CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9300/healthz', timeout=5)"]
ENTRYPOINT ["calib-serve", "watch"]
