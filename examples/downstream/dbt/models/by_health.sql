select health, count(*) as patients, avg(doctor_visits) as doctor_visits
from {{ source('released', 'patients_released') }}
group by health
