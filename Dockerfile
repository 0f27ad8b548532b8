FROM python:3.12-slim
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY harness harness
COPY locustfiles locustfiles
COPY profiles profiles
RUN pip install --no-cache-dir -c constraints.txt .
RUN useradd --create-home knee && mkdir /runs && chown knee /runs
USER knee
WORKDIR /home/knee
ENTRYPOINT ["knee"]
